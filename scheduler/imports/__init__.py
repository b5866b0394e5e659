"""What comes in from other people's formats, one module each."""
