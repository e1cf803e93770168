"""Learn: measurements → fitted models; how far off they are on what they have not seen."""
