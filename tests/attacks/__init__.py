"""Attacks of hostile containers and input on a running agent. Each test names its CVE or class."""
