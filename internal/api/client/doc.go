// Package client speaks Fuse's HTTP API. Client is generated from
// api/openapi.yaml and knows every operation; API wraps it for callers that
// want values and errors: it decodes the error envelope, follows pages and
// resumes event streams.
package client
