"""Wire formats: a chat call as an HTTP request, an HTTP response as a reply."""
