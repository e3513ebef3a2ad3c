"""The process runtime: containers are processes, with one keeper per pod."""
