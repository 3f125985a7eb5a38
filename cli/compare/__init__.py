"""`headrace compare`: arms times seeds, one run after the other, and a report that says how sure it is."""
