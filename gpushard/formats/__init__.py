"""On-disk formats: one module for each turns a document into an `ArrayLayout`.

A parser raises `MetadataError` for what is malformed or contradicts itself, and
`UnsupportedError` for what is valid but needs something that gpushard does not read. A
function that makes documents raises `OptionError` for arguments that do not fit.
"""
