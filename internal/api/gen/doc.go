// Package gen holds the types of the wire and the OpenAPI document itself,
// both made from api/openapi.yaml. Server and client share them.
package gen

import _ "embed"

//go:generate ../../../tools/openapi/generate

// OpenAPI is the document as JSON, the answer of GET /openapi.json.
//
//go:embed openapi.json
var OpenAPI []byte
