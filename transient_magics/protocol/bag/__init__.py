"""What the ends of a bag of jobs agree upon: what is declared of it, and what its driver tells."""
