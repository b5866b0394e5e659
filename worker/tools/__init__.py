"""What a model may do. It refuses to run anything itself: a tool says which Command a call becomes."""
