package fleet

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseHealth(t *testing.T) {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for doc, want := range map[string]*HealthStatus{
		`{"state":"passing","since":"2026-01-02T03:04:05Z"}`: {State: HealthPassing, Since: at},
		`{"state":"failing","failures":-3,"message":"` + strings.Repeat("x", 600) + `"}`: {
			State: HealthFailing, Message: strings.Repeat("x", MaxHealthMessage),
		},
		`{"state":"starting","failures":2,"more":1}`: {State: HealthStarting, Failures: 2},
		`{"state":"splendid"}`:                       nil,
		`{}`:                                         nil,
		`passing`:                                    nil,
		``:                                           nil,
		`{"state":"passing"}{"state":"failing"}`:     nil,
	} {
		if diff := cmp.Diff(want, ParseHealth([]byte(doc))); diff != "" {
			t.Errorf("%.60s: %s", doc, diff)
		}
	}
	if (*HealthStatus)(nil).Sound() != nil {
		t.Error("nothing is a verdict")
	}
}
