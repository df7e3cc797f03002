"""On-disk dialects; one module each turns a document into an `ArrayLayout`."""
