"""How fast Foretell is on this machine: forecasts, captures, plans, the store, the service, a watched loop."""
