"""Deflation: VMs that shrink instead of being revoked, and how the shrinking is enforced."""
