"""Tools for the development of podkeeper. They are not shipped."""
