"""Interchangeable stores: Amazon's and its likes, HTTP and Google's, the Hugging Face hub."""
