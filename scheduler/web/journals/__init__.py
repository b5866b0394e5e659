"""What a run's journal tells on screen: its steps, its time, its outputs. Refuses to hold a journal whole."""
