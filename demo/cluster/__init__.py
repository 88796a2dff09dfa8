"""Three nodes that share a store, behind a load balancer that gives each request to the next one."""
