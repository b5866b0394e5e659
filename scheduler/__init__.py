"""The control plane: decides which run is next. It refuses to open a container or to call a model."""
