// Reads from the replay service: small answers, asked again with the tag of the last one.

const LIMIT_MS = 8000;

async function ask(path, headers = {}) {
  const response = await fetch(path, { headers, cache: "no-store", signal: AbortSignal.timeout(LIMIT_MS) });
  if (response.ok || response.status === 304) return response;
  const said = await response.json().catch(() => ({}));
  const error = new Error(typeof said.detail === "string" ? said.detail : `the answer was status ${response.status}`);
  error.status = response.status;
  throw error;
}

// The answer as JSON; null when nothing has changed since the last call of the same asker.
export function asker(path) {
  let tag = null;
  return async (query = "") => {
    const response = await ask(path + query, tag && !query.endsWith("=-1") ? { "If-None-Match": tag } : {});
    if (response.status === 304) return null;
    tag = response.headers.get("ETag");
    return response.json();
  };
}

export const json = async (path) => (await ask(path)).json();
export const bytes = async (path) => (await ask(path)).arrayBuffer();

// What `work` gives, or null where the server has none.
export async function orNull(work) {
  try {
    return await work;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}
