"""Names and limits of cgroups."""
