package services

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/fusevm/fuse/internal/fleet"
)

func parseText(t *testing.T, text string) ([]Service, error) {
	t.Helper()
	var docs map[string]json.RawMessage
	if err := json.Unmarshal([]byte(text), &docs); err != nil {
		t.Fatal(err)
	}
	return Parse(docs)
}

func TestServicesComeInTheOrderOfTheirStarts(t *testing.T) {
	got, err := parseText(t, `{
		"a": {"command":["a"],"depends_on":["c"]},
		"b": {"command":["b"],"env":{"X":{"value":"1"},"Y":{"secret":"s"}},"restart":"on-failure","max_restarts":3,"stop_grace":"3s",
		      "healthcheck":{"test":["CMD-SHELL","exit 0"],"interval":"1500ms","retries":2}},
		"c": {"depends_on":{"b":{"condition":"service_healthy"}}}}`)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range got {
		names = append(names, s.Name)
	}
	if strings.Join(names, "") != "bca" {
		t.Errorf("order %v", names)
	}
	b, c := got[0], got[1]
	if b.StopGrace != 3*time.Second || b.Restart != RestartOnFailure || b.MaxRestarts != 3 || b.Probe.IntervalSeconds != 2 || len(b.Probe.Exec) != 3 {
		t.Errorf("%+v %+v", b, b.Probe)
	}
	if c.DependsOn["b"] != Healthy || c.Restart != RestartNo || c.StopGrace != DefaultStopGrace || len(c.Command) != 0 {
		t.Errorf("%+v", c)
	}
	if env := b.Env.Resolve(map[string]string{"s": "hidden"}); env["X"] != "1" || env["Y"] != "hidden" {
		t.Errorf("%v", env)
	}
}

func TestWhatCannotRunIsRefusedByField(t *testing.T) {
	for name, c := range map[string]struct{ doc, says string }{
		"cycle":          {`{"a":{"depends_on":["b"]},"b":{"depends_on":["c"]},"c":{"depends_on":["b"]}}`, "services.b.depends_on goes round in a circle: b -> c -> b"},
		"itself":         {`{"a":{"depends_on":["a"]}}`, "a -> a"},
		"unknown":        {`{"a":{"depends_on":["nobody"]}}`, `services.a.depends_on names "nobody"`},
		"condition":      {`{"a":{"depends_on":{"b":{"condition":"asleep"}}},"b":{}}`, `condition "asleep"`},
		"no probe":       {`{"a":{"depends_on":{"b":{"condition":"healthy"}}},"b":{}}`, "waits for b to be healthy"},
		"restart":        {`{"a":{"restart":"sometimes"}}`, "services.a.restart"},
		"port":           {`{"a":{"ports":[70000]}}`, "services.a.ports has 70000"},
		"name":           {`{"a b":{}}`, `"a b"`},
		"variable":       {`{"a":{"env":{"1X":{"value":""}}}}`, "services.a.env"},
		"two values":     {`{"a":{"env":{"X":{"value":"1","secret":"s"}}}}`, "both or neither"},
		"workdir":        {`{"a":{"workdir":"../x"}}`, "services.a.workdir"},
		"grace":          {`{"a":{"stop_grace":"1h"}}`, "services.a.stop_grace"},
		"empty test":     {`{"a":{"healthcheck":{"test":["CMD"]}}}`, "services.a.healthcheck"},
		"long timeout":   {`{"a":{"healthcheck":{"test":["x"],"interval":"1s","timeout":"2s"}}}`, "services.a.healthcheck.timeout"},
		"not an object":  {`{"a":3}`, "services.a is not a service"},
		"empty program":  {`{"a":{"command":[""]}}`, "services.a.command"},
		"negative tries": {`{"a":{"max_restarts":-1}}`, "services.a.max_restarts"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := parseText(t, c.doc)
			if fleet.CodeOf(err) != fleet.CodeInvalidArgument || !strings.Contains(err.Error(), c.says) {
				t.Errorf("%v, want it to say %q", err, c.says)
			}
		})
	}
}
