"""Ways in: where desired pods come from, behind the source port."""
