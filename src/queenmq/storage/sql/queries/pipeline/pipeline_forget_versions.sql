-- Keep the newest hundred versions.
DELETE FROM queen.pipeline_versions v USING queen.pipelines p WHERE p.name = v.name AND v.name = $1::text AND v.version <= p.version - 100
