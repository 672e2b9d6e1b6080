"""What simulated users do, for locust: streamed chats with the base model and an adapter, and completions with a list.

`locust --locustfile tests/clients/locust_users.py --host http://127.0.0.1:8080`
"""

from locust import HttpUser, task


class ChatUser(HttpUser):  # type: ignore[misc]
    """One user; each request is counted under its name."""

    @task  # type: ignore[untyped-decorator]
    def chat(self) -> None:
        """Stream a chat of the adapter `pirate` to its end."""
        body = {
            "model": "pirate",
            "messages": [{"role": "user", "content": "Tell me about the sea."}],
            "max_tokens": 16,
            "stream": True,
        }
        with self.client.post(
            "/v1/chat/completions", json=body, stream=True, catch_response=True, name="chat"
        ) as answer:
            lines = [line for line in answer.iter_lines() if line]
            if answer.status_code != 200 or lines[-1:] != [b"data: [DONE]"]:
                answer.failure(f"{answer.status_code}: the stream ends with {lines[-1:]}")

    @task  # type: ignore[untyped-decorator]
    def completion(self) -> None:
        """Complete a text under a list of two adapters."""
        lora = [{"id": 0, "scale": 0.5}, {"id": 1, "scale": 0.5}]
        self.client.post("/completion", json={"prompt": "The sea", "n_predict": 16, "lora": lora}, name="completion")
