"""What a batch is asked for: manifests, their targets and their mistakes. Refuses to enqueue anything."""
