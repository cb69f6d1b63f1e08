"""HTTP clients and servers, and addresses between processes."""
