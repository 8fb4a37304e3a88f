"""The pages: pure views of what the store holds, charts drawn on the server, templates, assets."""
