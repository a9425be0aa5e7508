"""`make demo`: a cluster of five nodes, a million records, a node killed half-way, and the proof
that nothing was lost."""
