"""The embedded runtime: containers are processes of this machine, each pod under a keeper that outlives the agent."""
