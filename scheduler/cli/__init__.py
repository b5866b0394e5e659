"""The `dawn` command. It refuses to hold rules of its own: it parses, calls one function, prints."""
