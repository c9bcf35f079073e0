package api

import (
	"encoding/json"
	"net/http"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
)

// The committed JSON is the YAML: somebody who edits one regenerates the other.
func TestGeneratedDocumentIsFresh(t *testing.T) {
	raw, err := os.ReadFile("../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	asJSON, err := yaml.YAMLToJSON(raw)
	if err != nil {
		t.Fatal(err)
	}
	var fromYAML, committed any
	if err := json.Unmarshal(asJSON, &fromYAML); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(gen.OpenAPI, &committed); err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(fromYAML, committed) {
		t.Error("internal/api/gen/openapi.json differs from api/openapi.yaml; run tools/openapi/generate")
	}
}

// Every code of the vocabulary has a status, and the document names it.
func TestEveryCodeHasAStatus(t *testing.T) {
	for _, code := range []fleet.Code{
		fleet.CodeInvalidArgument, fleet.CodeUnauthorized, fleet.CodeForbidden, fleet.CodeNotFound, fleet.CodeRouteNotFound,
		fleet.CodeMethodNotAllowed, fleet.CodeConflict, fleet.CodePayloadTooLarge, fleet.CodeLocked, fleet.CodeUnimplemented,
		fleet.CodeUnavailable, fleet.CodeDeadlineExceeded, fleet.CodeQuotaExceeded, fleet.CodeInternal,
	} {
		if statusOf[code] == 0 {
			t.Errorf("code %s has no status", code)
		}
		if !strings.Contains(string(gen.OpenAPI), string(code)) {
			t.Errorf("the document does not name %s", code)
		}
	}
}

func TestOpenAPIIsServed(t *testing.T) {
	w := newWorld(t)
	rec := w.call(http.MethodGet, "/openapi.json", "", "Authorization", "")
	w.want(rec, http.StatusOK, "")
	if rec.Body.String() != string(gen.OpenAPI) {
		t.Error("another document is served")
	}
}
