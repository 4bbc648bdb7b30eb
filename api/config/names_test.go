package config

import (
	"os"
	"strings"
	"testing"
)

// Every setting of the Storage contract has a line on the page.
// Storage: Configuration
func TestNamesOfStorageHaveTheirLines(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	for section, names := range map[string]string{
		"database":     "table_name dlq_table_name wal_table_name",
		"publisher":    "batch_size poll_interval_ms max_concurrent_publishers enable_wal_integration",
		"retry_policy": "default_max_attempts default_base_delay_ms default_max_delay_ms default_backoff_multiplier enable_jitter jitter_range",
		"dlq":          "auto_dlq_after_max_retries dlq_notification_enabled dlq_retention_days enable_manual_replay",
		"validation":   "enable_schema_validation enable_business_rule_validation schema_registry_url",
		"monitoring":   "enable_metrics metrics_prefix enable_health_checks alert_on_dlq_events",
	} {
		for name := range strings.FieldsSeq(names) {
			if !strings.Contains(string(page), "\n| `"+section+"."+name+"` | ") {
				t.Errorf("the page has no line for %s.%s", section, name)
			}
		}
	}
}
