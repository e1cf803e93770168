"""How wrong Foretell is: public measurements beside its forecasts, rivals, ablations, and the pages that show them."""
