"""One module a page, or a few that belong together. Each answers `(site, asked)` and refuses to know HTTP."""
