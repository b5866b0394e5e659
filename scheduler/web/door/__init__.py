"""How a browser reaches the pages: the socket, who is let in, and what an answer may do. Refuses to know any page."""
