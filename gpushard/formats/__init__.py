"""On-disk formats: one module for each turns a document into an `ArrayLayout`."""
