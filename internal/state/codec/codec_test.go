package codec

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/fusevm/fuse/internal/fleet"
)

func TestDocumentsCarryTheirVersion(t *testing.T) {
	doc, err := Encode("hosts", &fleet.Host{ID: "h", URL: "u"})
	if err != nil || !strings.HasPrefix(doc, `{"v":1,"id":"h",`) || !json.Valid([]byte(doc)) {
		t.Errorf("%s, %v", doc, err)
	}
	if doc, err := Encode("hosts", struct{}{}); err != nil || doc != `{"v":1}` {
		t.Errorf("an empty document: %s, %v", doc, err)
	}
	if _, err := Encode("hosts", func() {}); err == nil {
		t.Error("a function is encoded")
	}
}

// In version 1 a task's retries had another name, in version 2 another unit.
func TestOldDocumentsAreRaised(t *testing.T) {
	upcasters["tasks"] = []upcaster{
		func(doc map[string]json.RawMessage) error {
			doc["retry_count"] = doc["tries"]
			delete(doc, "tries")
			return nil
		},
		func(doc map[string]json.RawMessage) error {
			var n int
			if err := json.Unmarshal(doc["retry_count"], &n); err != nil {
				return err
			}
			doc["retry_count"] = json.RawMessage(fmt.Sprint(n - 1))
			return nil
		},
	}
	t.Cleanup(func() { delete(upcasters, "tasks") })
	for doc, want := range map[string]int{
		`{"v":1,"task_id":"t","tries":4}`:        3,
		`{"task_id":"t","retry_count":4,"v":2}`:  3,
		`{"v":3,"task_id":"t","retry_count":4}`:  4,
		`{ "task_id":"t","v":3,"retry_count":4}`: 4,
	} {
		task, err := Decode[fleet.Task]("tasks", []byte(doc))
		if err != nil || task.RetryCount != want || task.TaskID != "t" {
			t.Errorf("%s: %+v, %v", doc, task, err)
		}
	}
	if doc, err := Encode("tasks", &fleet.Task{}); err != nil || !strings.HasPrefix(doc, `{"v":3,`) {
		t.Errorf("%s, %v", doc, err)
	}
}

func TestDocumentsThatCannotBeReadAreRefused(t *testing.T) {
	for doc, want := range map[string]string{
		`{"v":2,"id":"h"}`:     "knows up to 1",
		`{"id":"h"}`:           "no version",
		`{"v":0,"id":"h"}`:     "no version",
		`{"v":"1","id":"h"}`:   "no version",
		`{"v":1,"id":7}`:       "decode hosts",
		`{"v":1,"id":"h"`:      "decode hosts",
		`[]`:                   "decode hosts",
		``:                     "decode hosts",
		`{"v":-5,"id":"host"}`: "no version",
	} {
		if h, err := Decode[fleet.Host]("hosts", []byte(doc)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %+v, %v", doc, h, err)
		}
	}
}

func FuzzDecodeRow(f *testing.F) {
	f.Add([]byte(`{"v":1,"id":"h"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		h, err := Decode[fleet.Host]("hosts", doc)
		if err != nil {
			return
		}
		if _, err := Encode("hosts", h); err != nil {
			t.Errorf("what was decoded cannot be encoded: %v", err)
		}
	})
}
