// The server's API: the model's facts, and an answer as a stream of events.

export class ApiError extends Error {
  constructor(message, status) {
    super(message);
    this.status = status;
  }
}

function headers(key) {
  const all = { "content-type": "application/json" };
  if (key) all.authorization = `Bearer ${key}`;
  return all;
}

async function failure(response) {
  let message = `${response.status} ${response.statusText}`;
  try {
    message = (await response.json()).error.message;
  } catch {
    // Not one of our errors; the status has to do.
  }
  return new ApiError(message, response.status);
}

export async function fetchModel(key) {
  const response = await fetch("/v1/models", { headers: headers(key) });
  if (!response.ok) throw await failure(response);
  const model = (await response.json()).data[0];
  return { name: model.id, contextLength: model.max_model_len };
}

// Yields {thought}, {content}, {call: {index, id, name, arguments}}, {finish} and {usage}.
export async function* streamAnswer(body, key, signal) {
  const response = await fetch("/v1/chat/completions", {
    method: "POST",
    headers: headers(key),
    body: JSON.stringify({ ...body, stream: true, stream_options: { include_usage: true } }),
    signal,
  });
  if (!response.ok) throw await failure(response);
  for await (const data of serverEvents(response.body)) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new ApiError(chunk.error.message, 500);
    if (chunk.usage) yield { usage: chunk.usage };
    for (const choice of chunk.choices) {
      const delta = choice.delta;
      if (delta.reasoning_content) yield { thought: delta.reasoning_content };
      if (delta.content) yield { content: delta.content };
      for (const call of delta.tool_calls ?? []) {
        yield {
          call: {
            index: call.index,
            id: call.id,
            name: call.function.name,
            arguments: call.function.arguments ?? "",
          },
        };
      }
      if (choice.finish_reason) yield { finish: choice.finish_reason };
    }
  }
}

async function* serverEvents(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      let end;
      while ((end = buffer.indexOf("\n\n")) >= 0) {
        const event = buffer.slice(0, end);
        buffer = buffer.slice(end + 2);
        for (const line of event.split("\n")) {
          if (line.startsWith("data: ")) yield line.slice(6);
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}
