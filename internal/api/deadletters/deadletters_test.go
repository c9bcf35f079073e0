package deadletters

import (
	"net/url"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/fusevm/fuse/internal/deadletters"
	"github.com/fusevm/fuse/internal/fleet"
)

func TestFilterOf(t *testing.T) {
	for text, want := range map[string]deadletters.Filter{
		"":                                     {},
		"kind=stuck_task":                      {Kind: "stuck_task"},
		"older_than_seconds=60&all=false":      {OlderThan: time.Minute},
		"kind=k&older_than_seconds=1&all=true": {Kind: "k", OlderThan: time.Second, All: true},
	} {
		q, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		got, err := filterOf(q)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: %s", text, diff)
		}
	}
	for _, text := range []string{"older_than_seconds=0", "older_than_seconds=-1", "older_than_seconds=1h", "older_than_seconds=99999999999999999", "all=yes",
		"all=true&knd=stuck_task", "all=true&kind=stuck_task&kind=orphan", "all=true&kind="} {
		q, err := url.ParseQuery(text)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := filterOf(q); fleet.CodeOf(err) != fleet.CodeInvalidArgument {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What a payload holds that is no object stays out of the answer.
func TestPayload(t *testing.T) {
	d := fleet.DeadLetter{Kind: fleet.DeadLetterStuckTask, EntityID: "vm", Payload: []byte(`{"age":1}`)}
	if got := deadLetterOf(&d); got.ID != "stuck_task:vm" || got.Payload["age"] != 1.0 {
		t.Errorf("got %+v", got)
	}
	d.Payload = []byte(`[1]`)
	if got := deadLetterOf(&d); got.Payload != nil {
		t.Errorf("got %+v", got)
	}
}
