"""Learn: measurements → fitted models, and how large their errors are on what they have not seen."""
