"""What goes out of an archive in other people's formats, one module each."""
