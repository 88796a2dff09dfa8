"""Servers under torture: real sockets, faults of the network, of processes and of stores, one judge."""
