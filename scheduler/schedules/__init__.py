"""Batches that come by the clock. Refuses to know what their manifests say."""
