"""The data plane: does one run. It refuses to decide which run is next; that is the scheduler's."""
