"""What a co-design is written as: ``write(design, path)`` writes a `Design` whole or not at all.

`InputError` where the file cannot be written.
"""
