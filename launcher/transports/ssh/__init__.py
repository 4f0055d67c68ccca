"""An agent on a host that is reached by SSH."""
