"""A second reader of Lamina's roots, in plain Python: written from docs/format.md alone, so that the document, and not a program, says what
the bytes mean. It shares no line with Lamina, checks whatever the document says must hold, and is in no hurry.

`layout` says which bytes are where, `flat` reads and writes FlatBuffers, `reader` reads roots, `writer` writes small ones, lies included.
"""
