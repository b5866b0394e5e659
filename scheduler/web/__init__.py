"""The archive on screen: pages that are read from an archive. Refuses to know anything that the archive does not."""
