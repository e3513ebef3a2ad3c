"""Ways down: what runs containers, behind the runtime port."""
