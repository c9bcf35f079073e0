package api

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/api/gen"
	"github.com/fusevm/fuse/internal/fleet"
)

func TestAmendAndFind(t *testing.T) {
	w := newWorld(t)
	w.add("a")
	w.add("b")
	env := decodeInto[gen.Environment](t, w.call("PATCH", "/v1/environments/fuse-a",
		`{"max_runtime_seconds":7200,"idle_timeout_seconds":600,"tags":{"team":"blue","run":"7"}}`))
	if s := env.Spec; s.MaxRuntimeSeconds != 7200 || s.IdleTimeoutSeconds != 600 || s.Tags["team"] != "blue" || len(s.Tags) != 2 {
		t.Errorf("%+v", s)
	}
	w.want(w.call("PATCH", "/v1/environments/fuse-b", `{"tags":{"team":"red"}}`), http.StatusOK, "")
	for query, want := range map[string]string{
		"tag=team=blue": "fuse-a", "tag=team": "fuse-a fuse-b", "tag=team=red&tag=run": "", "tag=run&tag=team=blue": "fuse-a",
		"tag=team=": "", "tag=nobody": "", "tag=team&task_id=b": "fuse-b",
	} {
		var got []string
		for _, env := range decodeInto[gen.EnvironmentList](t, w.call("GET", "/v1/environments?"+query, "")).Environments {
			got = append(got, env.ID)
		}
		if !slices.Equal(got, strings.Fields(want)) {
			t.Errorf("%s: %v, want %s", query, got, want)
		}
	}
	env = decodeInto[gen.Environment](t, w.call("PATCH", "/v1/environments/fuse-a", `{"max_runtime_seconds":0,"tags":{"run":null}}`))
	if s := env.Spec; s.MaxRuntimeSeconds != 0 || s.IdleTimeoutSeconds != 600 || len(s.Tags) != 1 {
		t.Errorf("what is not named stays, null removes: %+v", s)
	}
	for _, body := range []string{`{}`, `{"max_runtime_seconds":-1}`, `{"idle_timeout_seconds":9223372036854775807}`, `{"tags":{"a b":"c"}}`, `[]`} {
		w.want(w.call("PATCH", "/v1/environments/fuse-a", body), http.StatusBadRequest, fleet.CodeInvalidArgument)
	}
	w.want(w.call("PATCH", "/v1/environments/fuse-c", `{"idle_timeout_seconds":60}`), http.StatusNotFound, fleet.CodeNotFound)
}
